//! A transactional storage engine that keeps data at memory speed, never stops to save it, and brings it back exactly.
