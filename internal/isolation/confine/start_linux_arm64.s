#include "textflag.h"

// hinit_isolate is the entry point of the process (ld -E).
TEXT hinit_isolate(SB),NOSPLIT|NOFRAME,$0
	MOVD	$·begin(SB), R19
	JMP	hinit_bare(SB)
