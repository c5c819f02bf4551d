//! Reads boards: the batch rows of a key merged with its live states. The speed layer and the batch
//! layer use it. It connects `jobs`, which knows no stores, with `stores`, which knows no boards.

pub mod boards;
