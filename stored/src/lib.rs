//! Reads boards: the batch rows of a key merged with its live states. The speed layer and the batch
//! layer use it. It connects `jobs` and `stores`, which do not depend on each other.

pub mod boards;
