//! The Diffie-Hellman group ffdhe2048 (RFC 7919, appendix A.1).
//!
//! Invariants: no operation takes longer or shorter because of a secret exponent. An exponent is
//! used for one exchange.

use crypto_bigint::modular::constant_mod::{Residue, ResidueParams};
use crypto_bigint::{Encoding, U256, U2048, impl_modulus};

/// Bytes of an element of the group.
pub(crate) const ELEMENT: usize = 256;
/// Bytes of an exponent: more than the 225 bits that RFC 7919 asks for.
pub(crate) const EXPONENT: usize = 32;

impl_modulus!(
    Prime,
    U2048,
    "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695\
     A9E13641146433FBCC939DCE249B3EF97D2FE363630C75D8F681B202AEC4617A\
     D3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935\
     984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797A\
     BC0AB182B324FB61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4\
     AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61\
     9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005\
     C58EF1837D1683B2C6F34A26C1B2EFFA886B423861285C97FFFFFFFFFFFFFFFF"
);

type Element = Residue<Prime, { U2048::LIMBS }>;

/// Returns the element that the other side gets: the generator to the power of our exponent.
pub(crate) fn public(exponent: &[u8; EXPONENT]) -> [u8; ELEMENT] {
    power(&U2048::from_u8(2), exponent)
}

/// Returns the shared secret from the element of the other side; `None` if that is out of range,
/// or has an order of 1 or 2 (RFC 7919, 5.1).
pub(crate) fn shared(element: &[u8; ELEMENT], exponent: &[u8; EXPONENT]) -> Option<[u8; ELEMENT]> {
    let element = U2048::from_be_slice(element);
    let range = U2048::from_u8(2)..Prime::MODULUS.wrapping_sub(&U2048::ONE);
    range.contains(&element).then(|| power(&element, exponent))
}

fn power(element: &U2048, exponent: &[u8; EXPONENT]) -> [u8; ELEMENT] {
    let exponent = U256::from_be_slice(exponent);
    Element::new(element).pow(&exponent).retrieve().to_be_bytes()
}
