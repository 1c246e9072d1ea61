//! The initiator's commands as processes, against `lunette serve`: what they tell, what they do, how they fail.

mod benching;
mod copies;
mod data;
mod host;
mod looking;
mod losses;
mod reserving;
mod wrong_input;
