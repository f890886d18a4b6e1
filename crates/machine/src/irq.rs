//! Sections with interrupts disabled.

use core::marker::PhantomData;

/// Disables and enables interrupts on this CPU.
///
/// A host implements `irq_enter` and `irq_leave`, which count, so that sections nest and may end in
/// any order. Interrupts are enabled again when the last section has ended, if they were enabled
/// before the first. Callers use [`irqs_off`](Irqs::irqs_off).
///
/// ```
/// use machine::Irqs;
/// use std::cell::Cell;
///
/// /// A host without interrupts, which only counts sections.
/// struct Host(Cell<u32>);
/// // SAFETY: there are no interrupts, and one thread.
/// unsafe impl Irqs for Host {
///     fn irq_enter(&self) { self.0.set(self.0.get() + 1) }
///     unsafe fn irq_leave(&self) { self.0.set(self.0.get() - 1) }
///     fn irqs_enabled(&self) -> bool { self.0.get() == 0 }
/// }
/// let host = Host(Cell::new(0));
/// let (outer, inner) = (host.irqs_off(), host.irqs_off());
/// drop(outer);
/// assert!(!host.irqs_enabled());
/// drop(inner);
/// assert!(host.irqs_enabled());
/// ```
///
/// # Safety
/// From an `irq_enter` to the `irq_leave` that ends the outermost section, on the CPU that called
/// it:
/// - no interrupt handler runs, so the CPU performs no flush that another CPU requests, except in a
///   call of [`Step::relax`](crate::Step::relax) or of a [`Tlb`](crate::Tlb) method;
/// - the caller is not migrated, and no other code runs on this CPU.
///
/// Because of the exception, a CPU may spin for a lock with interrupts disabled while the lock's
/// holder waits for this CPU's flush. So code that disables interrupts in order to delay a flush (a
/// lockless walk, I3) must call neither in that section.
pub unsafe trait Irqs {
    /// Begins a section. Costs a few instructions on this CPU's own memory. May be called anywhere,
    /// also in an interrupt.
    fn irq_enter(&self);

    /// Ends a section that [`irq_enter`](Irqs::irq_enter) began on this CPU. Pending interrupts may
    /// run.
    ///
    /// # Safety
    /// It matches one `irq_enter` on this CPU that has not been matched.
    unsafe fn irq_leave(&self);

    /// Whether interrupts are enabled.
    fn irqs_enabled(&self) -> bool;

    /// Begins a section that ends when the guard is dropped. Sections nest.
    #[inline]
    fn irqs_off(&self) -> IrqOff<'_, Self> {
        self.irq_enter();
        IrqOff { machine: self, here: PhantomData }
    }
}

/// A section with interrupts disabled, on one CPU. It cannot be sent to another CPU:
///
/// ```compile_fail,E0277
/// # use machine::{IrqOff, Irqs};
/// fn elsewhere<M: Irqs + Sync>(section: IrqOff<'_, M>) {
///     std::thread::scope(|scope| scope.spawn(move || drop(section)));
/// }
/// ```
///
/// If it is forgotten, interrupts stay disabled.
#[must_use = "interrupts are enabled again when this is dropped"]
#[derive(Debug)]
pub struct IrqOff<'m, M: Irqs + ?Sized> {
    machine: &'m M,
    here: PhantomData<*mut ()>,
}

impl<M: Irqs + ?Sized> Drop for IrqOff<'_, M> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: matches the `irq_enter` of `irqs_off`. The guard stays on its CPU.
        unsafe { self.machine.irq_leave() }
    }
}
