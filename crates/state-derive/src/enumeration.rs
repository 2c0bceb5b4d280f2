//! Enumerations: the number of the variant, and the fields of the variant behind it.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DataEnum, DeriveInput, Error, Variant};

use crate::fields::{PlainField, fields_of, read_all, sum_of, with_variables, write_all, zero_of};
use crate::record_cell;

/// A variant with its number.
struct PlainVariant<'a> {
    number: u8,
    path: TokenStream,
    fields: Vec<PlainField<'a>>,
}

pub(crate) fn expand(input: &DeriveInput, data: &DataEnum) -> Result<TokenStream, Error> {
    let name = &input.ident;
    if data.variants.is_empty() {
        return Err(Error::new(
            name.span(),
            "an enumeration of plain data has no variants: it has no value",
        ));
    }
    let each = data.variants.iter().enumerate();
    let variants = each.map(|(number, variant)| variant_of(number, variant));
    let variants = variants.collect::<Result<Vec<PlainVariant<'_>>, Error>>()?;
    let has_fields = variants.iter().any(|variant| !variant.fields.is_empty());
    let value = field_value(input, &variants, has_fields);
    let cell = if has_fields { record_cell(input, "enumeration") } else { number_cell(input) };
    Ok(quote! { #value #cell })
}

fn variant_of(number: usize, variant: &Variant) -> Result<PlainVariant<'_>, Error> {
    let refused = |what: &str| Err(Error::new(variant.ident.span(), what));
    if variant.discriminant.is_some() {
        return refused(
            "variants of plain data are numbered from 0 in their order: leave the number out",
        );
    }
    let Ok(number) = u8::try_from(number) else {
        return refused("an enumeration of plain data has at most 256 variants");
    };
    let fields = fields_of(&variant.fields)?;
    if fields.iter().any(|field| field.constant.is_some()) {
        return refused("only of a structure can a field be read and written alone");
    }
    let ident = &variant.ident;
    Ok(PlainVariant { number, path: quote!(Self::#ident), fields })
}

fn field_value(
    input: &DeriveInput,
    variants: &[PlainVariant<'_>],
    has_fields: bool,
) -> TokenStream {
    let name = &input.ident;
    let lengths = variants.iter().map(|variant| sum_of(&variant.fields));
    let bytes = if has_fields {
        quote! {{
            let (lengths, mut most, mut at) = ([ #( #lengths, )* ], 0usize, 0usize);
            while at < lengths.len() {
                if lengths[at] > most {
                    most = lengths[at];
                }
                at += 1;
            }
            1 + most
        }}
    } else {
        quote!(1)
    };
    let zero = zero_of(&variants[0].path, &variants[0].fields);
    let readings = variants.iter().map(|variant| {
        let (number, read) = (variant.number, read_all(&variant.fields));
        let value = with_variables(&variant.path, &variant.fields);
        quote! { #number => { #read #value } }
    });
    // A number that no variant has is read as that of the first variant.
    let rest_of_numbers = (variants.len() < 256)
        .then(|| quote! { _ => <Self as ::stillpoint_state::FieldValue>::ZERO, });
    let writings = variants.iter().map(|variant| {
        let (number, write) = (variant.number, write_all(&variant.fields));
        let value = with_variables(&variant.path, &variant.fields);
        quote! { #value => { *first = #number; #write rest.fill(0); } }
    });
    quote! {
        impl ::stillpoint_state::FieldValue for #name {
            const PACKED_BYTES: usize = #bytes;
            const ZERO: Self = #zero;
            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                let rest = &bytes[1..];
                match bytes[0] {
                    #( #readings )*
                    #rest_of_numbers
                }
            }
            #[inline(always)]
            fn into_bytes(self, bytes: &mut [u8]) {
                let (first, rest) = bytes.split_first_mut().expect("room for the number of the variant");
                match self {
                    #( #writings )*
                }
            }
            ::stillpoint_state::field_value_room!(<#name as ::stillpoint_state::FieldValue>::PACKED_BYTES);
        }
    }
}

/// A cell of 4 bytes that holds the number of the variant.
fn number_cell(input: &DeriveInput) -> TokenStream {
    let name = &input.ident;
    quote! {
        impl ::stillpoint_state::Plain for #name {
            type Grain = <u32 as ::stillpoint_state::Plain>::Grain;
            const BYTES: usize = <u32 as ::stillpoint_state::Plain>::BYTES;
            #[inline(always)]
            fn load(cell: &[Self::Grain]) -> Self {
                let number = <u32 as ::stillpoint_state::Plain>::load(cell) as u8;
                <Self as ::stillpoint_state::FieldValue>::from_bytes(&[number])
            }
            #[inline(always)]
            fn store(self, cell: &[Self::Grain]) {
                let mut number = [0u8];
                ::stillpoint_state::FieldValue::into_bytes(self, &mut number);
                <u32 as ::stillpoint_state::Plain>::store(u32::from(number[0]), cell);
            }
        }
    }
}
