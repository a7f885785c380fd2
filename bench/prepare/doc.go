// Package prepare measures, in virtual time, what it is worth to submit a request before its input has been prepared:
// the same arrivals, hooks and trips, once with each way to submit (docs/decisions/0374).
package prepare
