#include "textflag.h"

#define SYS_arch_prctl 158
#define ARCH_SET_FS 0x1002
#define ARCH_GET_FS 0x1003

// hinit_bare is the first code of a process, and finds the stack as the kernel made it. Go code needs a thread with a g, the
// runtime's record of a goroutine. hinit_bare sets a g with which every stack check passes, and calls the function in R12,
// whose argument is the address of that stack. Then it jumps to the Go runtime, which sets the thread up again.
TEXT hinit_bare(SB),NOSPLIT|NOFRAME,$0
	MOVQ	SP, BX
	SUBQ	$64, SP
	ANDQ	$~15, SP
	MOVQ	BX, 32(SP)
	LEAQ	40(SP), SI // a C library may have set FS
	MOVQ	$ARCH_GET_FS, DI
	MOVQ	$SYS_arch_prctl, AX
	SYSCALL
	MOVQ	$·mainThread(SB), SI // the g is at -8(FS)
	ADDQ	$8, SI
	MOVQ	$ARCH_SET_FS, DI
	MOVQ	$SYS_arch_prctl, AX
	SYSCALL
	MOVQ	$·mainThread(SB), SI
	MOVQ	$·g0(SB), R14
	MOVQ	R14, (SI)
	XORPS	X15, X15
	MOVQ	32(SP), BX
	MOVQ	BX, 0(SP)
	CALL	R12
	MOVQ	40(SP), SI
	MOVQ	$ARCH_SET_FS, DI
	MOVQ	$SYS_arch_prctl, AX
	SYSCALL
	MOVQ	32(SP), SP
	JMP	_rt0_amd64_linux(SB)
