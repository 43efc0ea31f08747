#include "textflag.h"

// hinit_tools is the entry point of the process (ld -E).
TEXT hinit_tools(SB),NOSPLIT|NOFRAME,$0
	MOVD	$·begin(SB), R19
	JMP	hinit_bare(SB)
