#include "textflag.h"

// func prefetch(one, other *uint32)
TEXT ·prefetch(SB), NOSPLIT|NOFRAME, $0-16
	MOVQ one+0(FP), AX
	MOVQ other+8(FP), BX
	PREFETCHT0 (AX)
	PREFETCHT0 (BX)
	RET
