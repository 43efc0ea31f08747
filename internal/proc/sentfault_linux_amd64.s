#include "textflag.h"

// sent is a signal handler: DI is the signal, SI its siginfo_t, DX the context (sigaction(2)). The siginfo_t has si_code at
// offset 8, and the PID and the user of the sender at offset 16. sent counts a signal that a process has sent. It runs on the
// signal stack of the thread, without a frame, and changes only registers that a C function may change. It jumps to the
// handler of the Go runtime, which returns to the kernel.
TEXT sent<>(SB), NOSPLIT|NOFRAME, $0
	MOVL 8(SI), AX // si_code
	CMPL DI, $6 // SIGABRT and SIGSTKFLT (16): the kernel raises neither for an error of a program. With fcntl(2) F_SETSIG a
	JEQ  sender // process can send them with a si_code above 0.
	CMPL DI, $16
	JEQ  sender
	CMPL DI, $32 // these signals mean no fault, see runtimeDefaultSignals
	JGE  sender
	CMPL AX, $0 // above 0 the kernel has raised the signal (sigaction(2)); a process can send no other signal with such a code
	JGT  runtime
sender:
	MOVLQSX DI, CX
	LEAQ ·sentCount(SB), R8
	LOCK
	INCQ (R8)(CX*8)
	MOVQ $-1, R9
	CMPL AX, $0 // SI_USER
	JEQ  known
	CMPL AX, $-6 // SI_TKILL; with any other code, the sender chooses the rest of the siginfo_t
	JNE  store
known:
	MOVQ 16(SI), R9
store:
	LEAQ ·sentFrom(SB), R8
	MOVQ R9, (R8)(CX*8)
	MOVL $0, 8(SI) // SI_USER: only with this code or SI_TKILL, the runtime takes the signal for a sent one
	CMPL DI, $32
	JLT  runtime
	MOVL $16, DI // the runtime would end the process on a signal that it does not handle, so tell it SIGSTKFLT
runtime:
	MOVQ ·faultHandler(SB), AX
	JMP  AX

// sentHandler is the address of sent, for the kernel. A Go function value would have the address of a wrapper.
DATA ·sentHandler(SB)/8, $sent<>(SB)
GLOBL ·sentHandler(SB), NOPTR|RODATA, $8
