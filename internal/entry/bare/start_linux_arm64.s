#include "textflag.h"

// hinit_bare is the first code of a process, and finds the stack as the kernel made it. Go code needs a thread with a g, the
// runtime's record of a goroutine. hinit_bare sets a g with which every stack check passes, and calls the function in R19,
// whose argument is the address of that stack. Then it jumps to the Go runtime, which sets the thread up again.
TEXT hinit_bare(SB),NOSPLIT|NOFRAME,$0
	MOVD	RSP, R0
	SUB	$64, RSP
	MOVD	R0, 32(RSP)
	MOVD	$·g0(SB), g
	MOVD	R0, 8(RSP)
	CALL	(R19)
	ADD	$64, RSP
	JMP	_rt0_arm64_linux(SB)
