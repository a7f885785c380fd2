#include "textflag.h"

// func prefetch(words []unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ words_base+0(FP), AX
	MOVQ words_len+8(FP), CX
	LEAQ (AX)(CX*8), CX
	JMP  check

next:
	MOVQ (AX), BX
	PREFETCHT0 (BX)
	ADDQ $8, AX

check:
	CMPQ AX, CX
	JNE  next
	RET
