#include "textflag.h"

// hinit_bare runs first in a process: the stack is as the kernel made it. Go code needs a thread with a g. hinit_bare sets a g
// with which every stack check passes, and calls the function in R19 with that stack. Then it jumps to the runtime, which sets
// the thread up anew.
TEXT hinit_bare(SB),NOSPLIT|NOFRAME,$0
	MOVD	RSP, R0
	SUB	$64, RSP
	MOVD	R0, 32(RSP)
	MOVD	$·g0(SB), g
	MOVD	R0, 8(RSP)
	CALL	(R19)
	ADD	$64, RSP
	JMP	_rt0_arm64_linux(SB)
