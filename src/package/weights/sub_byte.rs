//! Elements of fewer than eight bits: packed into a stream of bits and taken out of it.
//!
//! Element `i` of `n` bits is at bits `i·n` to `i·n + n − 1` of the stream, and bit `k` of the stream
//! is bit `k mod 8` of byte `k div 8`, counted from the lowest. Three and six bits straddle bytes.

/// Packs the low `bits` bits of each element; the padding bits at the end are zero.
///
/// `bits` is 1 to 8. Returns the bytes and the number of padding bits.
pub fn pack(elements: &[u8], bits: u32) -> (Vec<u8>, u8) {
    let bits = bits.clamp(1, 8);
    let mask = (1u32 << bits) - 1;
    let mut bytes = Vec::with_capacity((elements.len() * bits as usize).div_ceil(8));
    let mut pending = 0u32;
    let mut held = 0;
    for element in elements {
        pending |= (u32::from(*element) & mask) << held;
        held += bits;
        if held >= 8 {
            bytes.push(pending as u8);
            pending >>= 8;
            held -= 8;
        }
    }
    if held == 0 {
        return (bytes, 0);
    }
    bytes.push(pending as u8);
    (bytes, (8 - held) as u8)
}

/// Takes `count` elements of `bits` bits out of packed bytes, each as an unsigned number.
///
/// `bits` is 1 to 8. `None` if there are too few bytes.
pub fn unpack(bytes: &[u8], bits: u32, count: usize) -> Option<Vec<u8>> {
    let bits = bits.clamp(1, 8);
    if count.checked_mul(bits as usize)?.div_ceil(8) > bytes.len() {
        return None;
    }
    let mask = (1u32 << bits) - 1;
    let mut elements = Vec::with_capacity(count);
    let mut pending = 0u32;
    let mut held = 0;
    let mut bytes = bytes.iter();
    while elements.len() < count {
        if held < bits {
            pending |= u32::from(*bytes.next()?) << held;
            held += 8;
        }
        elements.push((pending & mask) as u8);
        pending >>= bits;
        held -= bits;
    }
    Some(elements)
}

/// The signed number that the low four bits stand for in two's complement, −8 to 7.
pub fn sign_extend_int4(element: u8) -> i8 {
    ((element << 4) as i8) >> 4
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that coremltools' own writer makes of these elements.
    #[test]
    fn packing_gives_the_bytes_that_coremltools_writes() {
        let table: [(&[u8], u32, &[u8], u8); 4] = [
            (&[1, 0, 1, 1, 0, 0, 0, 0, 1], 1, &[0x0d, 0x01], 7),
            (&[1, 2, 3, 4, 5], 3, &[0xd1, 0x58], 1),
            (&[1, 63, 2, 5, 9], 6, &[0xc1, 0x2f, 0x14, 0x09], 2),
            (&[0xf8, 7, 0xff], 4, &[0x78, 0x0f], 4),
        ];
        for (elements, bits, bytes, padding) in table {
            assert_eq!(
                pack(elements, bits),
                (bytes.to_vec(), padding),
                "{bits} bits"
            );
            let low: Vec<u8> = elements.iter().map(|e| e & ((1 << bits) - 1)).collect();
            assert_eq!(unpack(bytes, bits, elements.len()), Some(low));
        }
        let signed = unpack(&[0x78, 0x0f], 4, 3).expect("three elements are there");
        let signed: Vec<i8> = signed.into_iter().map(sign_extend_int4).collect();
        assert_eq!(signed, [-8, 7, -1]);
    }

    #[test]
    fn unpacking_more_elements_than_there_are_gives_nothing() {
        assert_eq!(unpack(&[0xff], 3, 3), None);
        assert_eq!(unpack(&[0xff], 3, usize::MAX), None);
        assert_eq!(unpack(&[], 1, 0), Some(vec![]));
    }

    proptest::proptest! {
        #[test]
        fn unpacking_undoes_packing(bits in 1u32..=8, elements: Vec<u8>) {
            let (bytes, padding) = pack(&elements, bits);
            proptest::prop_assert_eq!(
                bytes.len() * 8,
                elements.len() * bits as usize + usize::from(padding)
            );
            let low: Vec<u8> = elements
                .iter()
                .map(|element| (u32::from(*element) & ((1 << bits) - 1)) as u8)
                .collect();
            proptest::prop_assert_eq!(unpack(&bytes, bits, elements.len()), Some(low));
        }
    }
}
