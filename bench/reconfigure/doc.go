// Package reconfigure moves models between sub-clusters while they serve, in virtual time, with the engine and the plans
// of production: what that adds to the requests that go bad, and where models are when the scheduler that applies the
// plan dies half-way.
package reconfigure
