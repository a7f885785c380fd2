// Package reconfigure moves models between sub-clusters while they serve, in virtual time, with the engine and the
// plans of production. It measures the additional bad requests, and checks where the models are when the scheduler
// that applies the plan dies half-way.
package reconfigure
