#include "textflag.h"

// func prefetch(words []unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT|NOFRAME, $0-24
	MOVD words_base+0(FP), R0
	MOVD words_len+8(FP), R1
	ADD  R1<<3, R0, R1
	B    check

next:
	MOVD.P 8(R0), R2
	PRFM (R2), PLDL1KEEP

check:
	CMP R0, R1
	BNE next
	RET
