//! Serial numbers that wrap (RFC 7143, 4.2.2.1, with the arithmetic of RFC 1982, SERIAL_BITS = 32).
//!
//! The types have no `Ord`: an order by magnitude would be wrong as soon as a counter wraps.

macro_rules! serial_number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub u32);

        impl $name {
            /// The number `n` after this one.
            #[must_use]
            pub const fn plus(self, n: u32) -> Self {
                Self(self.0.wrapping_add(n))
            }

            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                self.plus(1)
            }

            /// True when this number comes before `other` (RFC 1982, 3.2). Two numbers that are exactly 2^31
            /// apart have no order; the answer is then false both ways.
            #[must_use]
            pub const fn precedes(self, other: Self) -> bool {
                let ahead = other.0.wrapping_sub(self.0);
                ahead != 0 && ahead < 1 << 31
            }

            /// How many steps lead from `earlier` to this number, modulo 2^32.
            #[must_use]
            pub const fn since(self, earlier: Self) -> u32 {
                self.0.wrapping_sub(earlier.0)
            }
        }
    };
}

serial_number! {
    /// Command sequence number of a session (4.2.2.1).
    CmdSn
}
serial_number! {
    /// Status sequence number of a connection (4.2.2.2).
    StatSn
}
serial_number! {
    /// Data sequence number of a command or an R2T (4.2.2.3); R2TSN shares its numbering.
    DataSn
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    #[test]
    fn order_survives_the_wrap() {
        assert!(CmdSn(0xffff_ffff).precedes(CmdSn(0)));
        assert!(!CmdSn(0).precedes(CmdSn(0xffff_ffff)));
        assert_eq!(CmdSn(3).since(CmdSn(0xffff_fffe)), 5);
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn at_most_one_precedes_the_other(a: u32, b: u32) {
            let (a, b) = (StatSn(a), StatSn(b));
            prop_assert!(!(a.precedes(b) && b.precedes(a)));
            if a != b && a.since(b) != 1 << 31 {
                prop_assert!(a.precedes(b) || b.precedes(a));
            }
        }
    }
}
