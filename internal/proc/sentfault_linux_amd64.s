#include "textflag.h"

// sent is a signal handler: DI is the signal, SI its siginfo_t, DX the context (sigaction(2)). Who sent it stands at 16 in
// the siginfo_t. It runs on the signal stack of the thread, without a frame, and changes registers only that a C function may
// change. It ends in the handler of the Go runtime, which returns to the kernel.
TEXT sent<>(SB), NOSPLIT|NOFRAME, $0
	MOVL 8(SI), AX // si_code
	CMPL DI, $6 // SIGABRT and SIGSTKFLT: the kernel raises neither for what a program does. fcntl(2) F_SETSIG sends them with a
	JEQ  sender // si_code above 0
	CMPL DI, $16
	JEQ  sender
	CMPL DI, $32 // signals of no fault at all, see runtimeDefaultSignals
	JGE  sender
	CMPL AX, $0 // above 0 the kernel raised it (sigaction(2)); no process can send such a one of the other signals
	JGT  runtime
sender:
	MOVLQSX DI, CX
	LEAQ ·sentCount(SB), R8
	LOCK
	INCQ (R8)(CX*8)
	MOVQ $-1, R9
	CMPL AX, $0 // SI_USER
	JEQ  known
	CMPL AX, $-6 // SI_TKILL; with any other the sender writes what it likes
	JNE  store
known:
	MOVQ 16(SI), R9
store:
	LEAQ ·sentFrom(SB), R8
	MOVQ R9, (R8)(CX*8)
	MOVL $0, 8(SI) // SI_USER: the runtime takes only this one and SI_TKILL for sent
	CMPL DI, $32
	JLT  runtime
	MOVL $16, DI // the runtime ends the process for a signal that it has not asked for; SIGSTKFLT is the news of this one too
runtime:
	MOVQ ·faultHandler(SB), AX
	JMP  AX

// sentHandler is the address of sent for the kernel; a Go function value would be that of a wrapper.
DATA ·sentHandler(SB)/8, $sent<>(SB)
GLOBL ·sentHandler(SB), NOPTR|RODATA, $8
