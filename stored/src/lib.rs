//! What the batch layer stored of boards with the live states on top, as the speed layer and the batch
//! layer read it back: between the pure `jobs`, which knows no store, and `stores`, which knows no boards.

pub mod boards;
