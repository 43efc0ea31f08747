#include "textflag.h"

// sent is a signal handler: R0 is the signal, R1 its siginfo_t, R2 the context (sigaction(2)). See sentfault_linux_amd64.s.
TEXT sent<>(SB), NOSPLIT|NOFRAME, $0
	MOVW 8(R1), R3 // si_code
	CMPW $6, R0 // SIGABRT
	BEQ  sender
	CMPW $16, R0 // SIGSTKFLT
	BEQ  sender
	CMPW $32, R0
	BGE  sender
	CMPW $0, R3
	BGT  runtime
sender:
	MOVW R0, R4
	LSL  $3, R4
	MOVD $·sentCount(SB), R5
	ADD  R4, R5
count:
	LDAXR (R5), R6
	ADD   $1, R6
	STLXR R6, (R5), R7
	CBNZ  R7, count
	MOVD $-1, R6
	CMPW $0, R3 // SI_USER
	BEQ  known
	CMNW $6, R3 // SI_TKILL
	BNE  store
known:
	MOVD 16(R1), R6
store:
	MOVD $·sentFrom(SB), R5
	MOVD R6, (R5)(R4)
	MOVW ZR, 8(R1) // SI_USER
	CMPW $32, R0
	BLT  runtime
	MOVD $16, R0
runtime:
	MOVD ·faultHandler(SB), R3
	JMP  (R3)

DATA ·sentHandler(SB)/8, $sent<>(SB)
GLOBL ·sentHandler(SB), NOPTR|RODATA, $8
