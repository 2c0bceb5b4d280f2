//! Structures: the fields one behind the other.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Error, Fields};

use crate::fields::{PlainField, fields_of, read_all, sum_of, with_variables, write_all, zero_of};
use crate::record_cell;

pub(crate) fn expand(input: &DeriveInput, fields: &Fields) -> Result<TokenStream, Error> {
    let name = &input.ident;
    let fields = fields_of(fields)?;
    if fields.is_empty() {
        return Err(Error::new(
            name.span(),
            "a structure of plain data has no fields: it has no bytes",
        ));
    }
    let path = quote!(#name);
    let (bytes, zero) = (sum_of(&fields), zero_of(&path, &fields));
    let (value, read, write) =
        (with_variables(&path, &fields), read_all(&fields), write_all(&fields));
    let constants = constants_of(&fields);
    let cell = record_cell(input, "record");
    Ok(quote! {
        impl #name {
            #constants
        }
        impl ::stillpoint_state::FieldValue for #name {
            const PACKED_BYTES: usize = #bytes;
            const ZERO: Self = #zero;
            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                let rest = bytes;
                #read
                #value
            }
            #[inline(always)]
            fn into_bytes(self, bytes: &mut [u8]) {
                let #value = self;
                let rest = bytes;
                #write
                let _ = rest;
            }
            ::stillpoint_state::field_value_room!(<#name as ::stillpoint_state::FieldValue>::PACKED_BYTES);
        }
        #cell
    })
}

/// The constants that `#[field(NAME)]` asks for.
fn constants_of(fields: &[PlainField<'_>]) -> TokenStream {
    let each = fields.iter().enumerate().filter_map(|(number, field)| {
        let (constant, kind, visibility) = (field.constant.as_ref()?, field.kind, field.visibility);
        let offset = sum_of(&fields[..number]);
        Some(quote! {
            /// Where this field lies.
            #visibility const #constant: ::stillpoint_state::Field<Self, #kind> =
                ::stillpoint_state::Field::at(#offset);
        })
    });
    quote!( #( #each )* )
}
