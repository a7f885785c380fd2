//go:build cgo

package heap

/*
#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static void trim(void) {
#ifdef __GLIBC__
	malloc_trim(0);
#endif
}
*/
import "C"

// Trim returns free pages of C's heap to the system, if the C library supports it. It takes milliseconds and holds
// that heap's locks.
func Trim() { C.trim() }
