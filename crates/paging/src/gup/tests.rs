use std::cell::Cell;
std::thread_local! {
    pub(super) static SECOND_LOOK_LEFT_OUT: Cell<bool> = const { Cell::new(false) };
}
