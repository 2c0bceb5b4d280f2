//! The fields of a structure or of a variant, one behind the other.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Attribute, Error, Fields, Ident, Member, Type, Visibility};

/// A field of plain data.
pub(crate) struct PlainField<'a> {
    pub(crate) member: Member,
    pub(crate) visibility: &'a Visibility,
    pub(crate) kind: &'a Type,
    /// The constant that `#[field(NAME)]` asks for.
    pub(crate) constant: Option<Ident>,
    /// The variable that holds the field's value.
    pub(crate) variable: Ident,
}

/// The fields in their order.
pub(crate) fn fields_of(fields: &Fields) -> Result<Vec<PlainField<'_>>, Error> {
    let each = fields.iter().zip(fields.members()).enumerate().map(|(number, (field, member))| {
        Ok(PlainField {
            member,
            visibility: &field.vis,
            kind: &field.ty,
            constant: constant_of(&field.attrs)?,
            variable: format_ident!("field_{number}"),
        })
    });
    each.collect()
}

/// The name in `#[field(NAME)]`.
fn constant_of(attributes: &[Attribute]) -> Result<Option<Ident>, Error> {
    let mut found = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("field")) {
        let name = attribute.parse_args::<Ident>()?;
        if found.replace(name).is_some() {
            return Err(Error::new_spanned(attribute, "a field is named twice"));
        }
    }
    Ok(found)
}

/// The length of a type in bytes.
pub(crate) fn bytes_of(kind: &Type) -> TokenStream {
    quote!(<#kind as ::stillpoint_state::FieldValue>::PACKED_BYTES)
}

/// The length of all fields in bytes.
pub(crate) fn sum_of<'a>(fields: impl IntoIterator<Item = &'a PlainField<'a>>) -> TokenStream {
    let lengths = fields.into_iter().map(|field| bytes_of(field.kind));
    quote!(0usize #( + #lengths )*)
}

/// Code for a value of `path` with zeros in all fields: `path { member: zero, … }`.
pub(crate) fn zero_of(path: &TokenStream, fields: &[PlainField<'_>]) -> TokenStream {
    let members = fields.iter().map(|field| {
        let (member, kind) = (&field.member, field.kind);
        quote!(#member: <#kind as ::stillpoint_state::FieldValue>::ZERO)
    });
    quote!(#path { #( #members, )* })
}

/// Code for the structure or variant `path`, each field in its variable: a pattern or an
/// expression.
pub(crate) fn with_variables(path: &TokenStream, fields: &[PlainField<'_>]) -> TokenStream {
    let members = fields.iter().map(|field| {
        let (member, variable) = (&field.member, &field.variable);
        quote!(#member: #variable)
    });
    quote!(#path { #( #members, )* })
}

/// Statements that read the variables from the bytes in `rest`, and then let `rest` be the bytes
/// behind them.
pub(crate) fn read_all(fields: &[PlainField<'_>]) -> TokenStream {
    let each = fields.iter().map(|field| {
        let (variable, kind, bytes) = (&field.variable, field.kind, bytes_of(field.kind));
        quote! {
            let (head, rest) = rest.split_at(#bytes);
            let #variable = <#kind as ::stillpoint_state::FieldValue>::from_bytes(head);
        }
    });
    quote! { #( #each )* let _ = rest; }
}

/// Statements that write the variables to the bytes in `rest`, and then let `rest` be the bytes
/// behind them.
pub(crate) fn write_all(fields: &[PlainField<'_>]) -> TokenStream {
    let each = fields.iter().map(|field| {
        let (variable, bytes) = (&field.variable, bytes_of(field.kind));
        quote! {
            let (head, rest) = rest.split_at_mut(#bytes);
            ::stillpoint_state::FieldValue::into_bytes(#variable, head);
        }
    });
    quote! { #( #each )* }
}
