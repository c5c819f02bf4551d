//! The batch layer: rolls, archives, recomputes, checks, publishes, completes.
