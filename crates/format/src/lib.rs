//! Every byte that Stillpoint writes to a disk: encode, decode, checksum. Knows no I/O and no threads.
