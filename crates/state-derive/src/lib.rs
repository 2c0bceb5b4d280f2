//! The derive macro `Plain`. The crate `stillpoint_state` exports and describes it.
//!
//! A structure becomes the bytes of its fields, which follow each other without gaps. An
//! enumeration becomes the number of its variant and room for the longest variant. All lengths are
//! constants that the compiler computes from those of the fields' types.

mod enumeration;
mod fields;
mod structure;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, parse_macro_input, spanned::Spanned};

/// Makes a structure or an enumeration a cell of arrays and a field of cells. See `stillpoint_state::Plain`.
#[proc_macro_derive(Plain, attributes(field))]
pub fn derive_plain(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(input: &DeriveInput) -> Result<TokenStream, Error> {
    if !input.generics.params.is_empty() {
        let what = "plain data has no type parameters and no lifetimes: its length is a constant";
        return Err(Error::new(input.generics.span(), what));
    }
    match &input.data {
        Data::Struct(data) => structure::expand(input, &data.fields),
        Data::Enum(data) => enumeration::expand(input, data),
        Data::Union(_) => {
            Err(Error::new(input.ident.span(), "a union is no plain data: use an enumeration"))
        }
    }
}

/// The code that makes a structure or an enumeration a cell, which holds the value as bytes.
fn record_cell(input: &DeriveInput, kind: &str) -> TokenStream {
    let name = &input.ident;
    let too_long =
        format!("{kind} `{name}` has more than 4096 bytes: divide it among several arrays");
    let empty = format!("{kind} `{name}` has no bytes");
    quote! {
        impl ::stillpoint_state::Plain for #name {
            type Grain = ::stillpoint_state::AtomicU64;
            const BYTES: usize = {
                let bytes = <#name as ::stillpoint_state::FieldValue>::PACKED_BYTES;
                assert!(bytes <= ::stillpoint_state::CELL_BYTES_MAX, #too_long);
                assert!(bytes > 0, #empty);
                bytes.next_multiple_of(8)
            };
            #[inline(always)]
            fn load(cell: &[::stillpoint_state::AtomicU64]) -> Self {
                const BYTES: usize = <#name as ::stillpoint_state::Plain>::BYTES;
                let bytes = ::stillpoint_state::load_record::<BYTES>(cell);
                let fields = &bytes[..<#name as ::stillpoint_state::FieldValue>::PACKED_BYTES];
                <#name as ::stillpoint_state::FieldValue>::from_bytes(fields)
            }
            #[inline(always)]
            fn store(self, cell: &[::stillpoint_state::AtomicU64]) {
                const BYTES: usize = <#name as ::stillpoint_state::Plain>::BYTES;
                let mut bytes = [0u8; BYTES];
                let fields = &mut bytes[..<#name as ::stillpoint_state::FieldValue>::PACKED_BYTES];
                ::stillpoint_state::FieldValue::into_bytes(self, fields);
                ::stillpoint_state::store_record(&bytes, cell);
            }
        }
        // A structure that is too long is refused here, once, and not where it is used.
        const _: usize = <#name as ::stillpoint_state::Plain>::BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(source: &str) -> String {
        let input = syn::parse_str(source).expect("it parses");
        expand(&input).expect_err("it is refused").to_string()
    }

    #[test]
    fn what_is_no_plain_data_is_refused_with_the_reason() {
        let cases = [
            ("struct A<T> { a: T }", "no type parameters"),
            ("struct A<'a> { a: &'a u8 }", "no lifetimes"),
            ("union A { a: u8, b: i8 }", "a union is no plain data"),
            ("struct A;", "has no fields"),
            ("struct A {}", "has no fields"),
            ("enum A {}", "has no variants"),
            ("enum A { B = 1 }", "numbered from 0 in their order"),
            ("enum A { B(#[field(X)] u8) }", "only of a structure"),
            ("struct A { #[field] a: u8 }", "expected"),
            ("struct A { #[field(B)] #[field(C)] a: u8 }", "twice"),
        ];
        for (source, reason) in cases {
            let refused = refusal(source);
            assert!(refused.contains(reason), "{source}: {refused}");
        }
        let variants: String = (0..257).map(|number| format!("V{number},")).collect();
        assert!(refusal(&format!("enum A {{ {variants} }}")).contains("at most 256 variants"));
    }

    #[test]
    fn what_comes_out_is_rust() {
        for source in [
            "pub struct A { #[field(B)] pub b: [u8; 3], c: C }",
            "struct A(u8, #[field(X)] [f32; 2]);",
            "enum A { B, C }",
            "enum A { B, C(u8, u16), D { e: f32 } }",
        ] {
            let input = syn::parse_str(source).expect("it parses");
            let expanded = expand(&input).expect("it is plain data");
            syn::parse2::<syn::File>(expanded).expect(source);
        }
    }
}
