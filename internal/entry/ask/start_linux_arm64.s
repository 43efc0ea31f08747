#include "textflag.h"

// hinit_tools is the entry point of hinit-tools (ld -E).
TEXT hinit_tools(SB),NOSPLIT|NOFRAME,$0
	MOVD	$·begin(SB), R19
	JMP	hinit_bare(SB)

// hinit_entry is the entry point of hinit (ld -E).
TEXT hinit_entry(SB),NOSPLIT|NOFRAME,$0
	MOVD	$·beginHinit(SB), R19
	JMP	hinit_bare(SB)
