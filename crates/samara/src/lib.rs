//! samara
