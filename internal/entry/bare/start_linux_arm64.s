#include "textflag.h"

// hinit_bare is where a process begins: the stack is as the kernel left it. It gives Go code what that expects of a thread, a g that
// lets every check of the stack pass, and calls the function in R19 with that stack. Then it goes on to the runtime, which sets all of it
// again.
TEXT hinit_bare(SB),NOSPLIT|NOFRAME,$0
	MOVD	RSP, R0
	SUB	$64, RSP
	MOVD	R0, 32(RSP)
	MOVD	$·g0(SB), g
	MOVD	R0, 8(RSP)
	CALL	(R19)
	ADD	$64, RSP
	JMP	_rt0_arm64_linux(SB)
