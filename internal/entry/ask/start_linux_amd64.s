#include "textflag.h"

// hinit_tools is the entry point of the process (ld -E).
TEXT hinit_tools(SB),NOSPLIT|NOFRAME,$0
	LEAQ	·begin(SB), R12
	JMP	hinit_bare(SB)
