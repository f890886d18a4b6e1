//! Sections that no interrupt enters.

use core::marker::PhantomData;

/// Interrupts of this CPU, off and on.
///
/// A host implements `irq_enter` and `irq_leave`, which count, so that sections nest and may end in
/// any order: interrupts come on again when the last has ended, and only if they were on before the
/// first. Users take [`irqs_off`](Irqs::irqs_off).
///
/// ```
/// use machine::Irqs;
/// use std::cell::Cell;
///
/// /// A host on which turning interrupts off is a count.
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
/// - no handler of an interrupt runs, so no flush that another CPU asks for is carried out, except
///   by a call of [`Step::relax`](crate::Step::relax) or of a [`Tlb`](crate::Tlb) method;
/// - the caller is not moved to another CPU, and nobody else runs on this one.
///
/// The exception is what makes it safe to spin for a lock with interrupts off while its holder
/// waits for this CPU's flush. So whoever relies on IRQs being off to hold back a flush (a lockless
/// walk, I3) calls neither in that section.
pub unsafe trait Irqs {
    /// Begins a section. Some instructions on this CPU's own memory; may be called anywhere, also
    /// in an interrupt.
    fn irq_enter(&self);

    /// Ends a section that [`irq_enter`](Irqs::irq_enter) began on this CPU. Interrupts that are
    /// waiting may run.
    ///
    /// # Safety
    /// It matches one `irq_enter` on this CPU that has not been matched.
    unsafe fn irq_leave(&self);

    /// Whether interrupts are on.
    fn irqs_enabled(&self) -> bool;

    /// Begins a section that ends when the guard is dropped. Sections nest.
    #[inline]
    fn irqs_off(&self) -> IrqOff<'_, Self> {
        self.irq_enter();
        IrqOff { machine: self, here: PhantomData }
    }
}

/// A section without interrupts, on one CPU. It cannot be sent to another:
///
/// ```compile_fail,E0277
/// # use machine::{IrqOff, Irqs};
/// fn elsewhere<M: Irqs + Sync>(section: IrqOff<'_, M>) {
///     std::thread::scope(|scope| scope.spawn(move || drop(section)));
/// }
/// ```
///
/// One that is forgotten leaves interrupts off.
#[must_use = "interrupts come on again when this is dropped"]
#[derive(Debug)]
pub struct IrqOff<'m, M: Irqs + ?Sized> {
    machine: &'m M,
    here: PhantomData<*mut ()>,
}

impl<M: Irqs + ?Sized> Drop for IrqOff<'_, M> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: matches the `irq_enter` of `irqs_off`; the guard stays on its CPU.
        unsafe { self.machine.irq_leave() }
    }
}
