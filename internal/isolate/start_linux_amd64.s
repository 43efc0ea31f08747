#include "textflag.h"

// hinit_isolate is where the process begins (ld -E).
TEXT hinit_isolate(SB),NOSPLIT|NOFRAME,$0
	LEAQ	·begin(SB), R12
	JMP	hinit_bare(SB)
