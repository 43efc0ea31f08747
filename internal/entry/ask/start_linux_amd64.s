#include "textflag.h"

// hinit_tools is the entry point of hinit-tools (ld -E).
TEXT hinit_tools(SB),NOSPLIT|NOFRAME,$0
	LEAQ	·begin(SB), R12
	JMP	hinit_bare(SB)

// hinit_entry is the entry point of hinit (ld -E).
TEXT hinit_entry(SB),NOSPLIT|NOFRAME,$0
	LEAQ	·beginHinit(SB), R12
	JMP	hinit_bare(SB)
