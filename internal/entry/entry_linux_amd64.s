#include "textflag.h"

#define SYS_exit 60
#define SYS_clone 56
#define SYS_arch_prctl 158
#define SYS_futex 202
#define ARCH_SET_FS 0x1002
#define ARCH_GET_FS 0x1003
#define FUTEX_WAIT_PRIVATE 128
#define CLONE_FLAGS 0x50f00 // VM, FS, FILES, SIGHAND, THREAD, SYSVSEM

// hinit_entry is where the process begins (ld -E): the stack is as the kernel left it. It gives Go code what that expects of a
// thread, a g that lets every check of the stack pass, and goes on to the runtime, which sets all of it again.
TEXT hinit_entry(SB),NOSPLIT|NOFRAME,$0
	MOVQ	SP, BX
	SUBQ	$64, SP
	ANDQ	$~15, SP
	MOVQ	BX, 32(SP)
	LEAQ	40(SP), SI // a C library may have set FS
	MOVQ	$ARCH_GET_FS, DI
	MOVQ	$SYS_arch_prctl, AX
	SYSCALL
	MOVQ	$·thread(SB), SI // the g is at -8(FS)
	ADDQ	$8, SI
	MOVQ	$ARCH_SET_FS, DI
	MOVQ	$SYS_arch_prctl, AX
	SYSCALL
	MOVQ	$·thread(SB), SI
	MOVQ	$·g0(SB), R14
	MOVQ	R14, (SI)
	XORPS	X15, X15
	MOVQ	32(SP), BX
	MOVQ	BX, 0(SP)
	CALL	·begin(SB)
	MOVQ	40(SP), SI
	MOVQ	$ARCH_SET_FS, DI
	MOVQ	$SYS_arch_prctl, AX
	SYSCALL
	MOVQ	32(SP), SP
	JMP	_rt0_amd64_linux(SB)

// func hold(leave *uint32) int
TEXT ·hold(SB),NOSPLIT,$0-16
	MOVQ	leave+0(FP), R12
	MOVQ	$CLONE_FLAGS, DI
	XORL	SI, SI // it shares this stack, and touches none
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVQ	$SYS_clone, AX
	SYSCALL
	TESTQ	AX, AX
	JZ	wait
	MOVQ	AX, ret+8(FP)
	RET
wait:
	MOVL	(R12), AX
	TESTL	AX, AX
	JNZ	leave
	MOVQ	R12, DI
	MOVQ	$FUTEX_WAIT_PRIVATE, SI
	XORL	DX, DX
	XORL	R10, R10
	MOVQ	$SYS_futex, AX
	SYSCALL
	JMP	wait
leave:
	XORL	DI, DI
	MOVQ	$SYS_exit, AX
	SYSCALL
	INT	$3
