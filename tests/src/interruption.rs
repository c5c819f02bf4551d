//! Interruption of work at a random point.

use std::time::Duration;

use rand::Rng;

/// Runs work while repeating `beside`. In half of the cases the work is dropped within
/// `wait_ms_max`.
pub async fn interrupt_randomly<R: Rng>(
    work: impl Future<Output = ()> + Send + 'static,
    wait_ms_max: u64,
    rng: &mut R,
    mut beside: impl AsyncFnMut(&mut R),
) {
    #[expect(clippy::disallowed_methods, reason = "it is awaited or aborted below")]
    let mut task = tokio::spawn(work);
    let interrupts = rng.random_bool(0.5);
    let wait = Duration::from_millis(rng.random_range(0..wait_ms_max));
    let deadline = tokio::time::Instant::now() + wait;
    loop {
        tokio::select! {
            ended = &mut task => {
                ended.expect("the work");
                return;
            }
            () = tokio::time::sleep_until(deadline), if interrupts => {
                task.abort();
                drop(task.await);
                return;
            }
            () = beside(rng) => {}
        }
    }
}
