use super::*;
use std::boxed::Box;

fn leak() -> &'static Record {
    Box::leak(Box::new(Record::new()))
}

#[test]
fn a_period_waits_for_sections_that_began_before_it() {
    let domain = Domain::new();
    let (old, new) = (leak(), leak());
    domain.add(old);
    domain.add(new);
    assert!(old.enter(&domain));
    let target = domain.target();
    assert!(!domain.is_over(target));
    // A section that begins later does not matter.
    assert!(new.enter(&domain));
    assert!(!domain.is_over(target));
    assert!(old.leave());
    assert!(domain.is_over(target));
    let next = domain.target();
    assert!(!domain.is_over(next));
    // A target that is over stays over.
    assert!(domain.is_over(target));
    assert!(new.leave());
    assert!(domain.is_over(next));
}

#[test]
fn sections_nest_and_are_counted() {
    let domain = Domain::new();
    let record = leak();
    domain.add(record);
    assert!(!record.leave());
    assert!(record.enter(&domain) && record.enter(&domain));
    assert_eq!((record.depth(), record.number()), (2, 1));
    let target = domain.target();
    assert!(record.leave());
    assert!(!domain.is_over(target));
    assert!(record.leave());
    assert!(domain.is_over(target));
    assert!(!record.leave());
    assert!(record.enter(&domain));
    assert_eq!(record.number(), 2);
    record.depth.set(u32::MAX);
    assert!(!record.enter(&domain));
}

#[test]
fn a_record_is_taken_over_when_its_thread_ends() {
    let domain = Domain::new();
    let record = leak();
    domain.add(record);
    assert!(domain.reuse().is_none());
    assert!(record.enter(&domain));
    let target = domain.target();
    assert!(record.give_up());
    assert!(domain.is_over(target));
    assert!(core::ptr::eq(domain.reuse().unwrap(), record));
    assert!(domain.reuse().is_none());
    assert_eq!(record.depth(), 0);
}
