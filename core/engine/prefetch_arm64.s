#include "textflag.h"

// func prefetch(one, other *uint32)
TEXT ·prefetch(SB), NOSPLIT|NOFRAME, $0-16
	LDP one+0(FP), (R0, R1)
	PRFM (R0), PLDL1KEEP
	PRFM (R1), PLDL1KEEP
	RET
