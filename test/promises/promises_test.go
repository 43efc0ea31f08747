package promises_test

// promises returns the lines of the sheet. Each test name has its directory as a prefix.
func promises() []promise {
	return []promise{
		{
			number: 1, text: "No service, client, file or refusal of the kernel makes PID 1 exit, hang or spin.",
			tests: []string{
				"test/promises.TestTheKernelRefuses", "test/promises.TestAFullDiskAndAReadOnlyOne", "test/promises.TestTermWhileHinitBegins", "test/promises.TestFrozen",
				"test/promises.TestHostileClients", "test/promises.TestChaos", "test/promises.TestChaosInSlots", "test/promises.TestNoSignalKillsPID1",
				"test/promises.TestSignalsThatTheRuntimeLeavesAloneDoNotKillPID1",
				"test/promises.TestASeccompProfileThatForbidsToWait", "test/promises.TestAGatewayThatChangesItsConfigurationDoesNotSpin",
				"supervisor.TestStepsOfTheClockMoveNoDeadline", "internal/control.TestClientsThatMisbehaveAreDropped",
			},
			attempted: "{faults} faults; {hostile clients} silent clients; {bad inputs} bad inputs; {chaos rounds} rounds of chaos with {chaos " +
				"commands} commands; {terms at the beginning} early TERMs; {hostile signals} signals to PID 1; a gateway that always exits " +
				"with 78 and changes its configuration: {restless starts}",
		},
		{
			number: 2, text: "No zombie is left, however many orphans there are. A signal goes only to the service's own processes.",
			tests: []string{"test/promises.TestOrphans", "test/promises.TestNoSignalGoesAstray"},
			attempted: "{orphans} orphans; {signals} stops, kills and restarts beside other processes that count signals, {recycled} of them with a " +
				"reused process number",
		},
		{
			number: 3, text: "No accepted log line is lost, doubled or torn. hinit counts and shows the lines that the console leaves out.",
			tests:     []string{"test/promises.TestTheKernelRefuses", "test/promises.TestAFullDiskAndAReadOnlyOne", "test/promises.TestChaos", "test/promises.TestChaosInSlots", "logrotate.FuzzPump", "logrotate.TestEveryLineIsAccountedFor"},
			attempted: "{lines} lines compared, through full disks, faults, rotations and kills",
		},
		{
			number: 4, text: "After SIGKILL of the container at any instant, the next boot restores exactly the last intent.",
			tests: []string{
				"test/promises.TestCrashAfterEveryStepOfACommand", "test/promises.TestCrashAfterEveryStepOfAProfileCommand", "test/promises.TestCrashAfterEveryStepOfABoot", "test/promises.TestKilledAtAnyInstantAfterTheAnswer",
				"profiles.TestBootPutsBackWhatAGatewayTookBack",
			},
			attempted: "all {crashes} crash points; {kills} kills",
		},
		{
			number: 5, text: "Stop ends everything that a service started within its grace + 50 ms. The container ends within its budget + 50 ms. A " +
				"stubborn service does not delay others.",
			tests: []string{
				"test/promises.TestStopEndsEverything", "test/promises.TestStopEndsAComet", "test/promises.TestStopEndsACometOnABusyMachine",
				"test/promises.TestStopEndsAProcessWhoseFirstThreadHasEnded", "test/promises.TestStopNamesAProcessThatHidesWhoseItIs",
				"test/promises.TestStopEndsASiblingOfTheGateway", "internal/proc.TestACometIsNotGoneUntilItIs",
			},
			attempted: "{stops} stops of services that try to escape, at most {worst stop} beyond the grace; {comets} stops of a daemon that forks " +
				"and ends for ever, at most {worst comet} beyond it if the test ran alone; half of the container's ends at most {most ends} beyond its " +
				"budget",
		},
		{
			number: 6, text: "`start`, `stop` and `restart` never report a false success. However many clients there are, each service has one process and " +
				"the last intent.",
			tests: []string{
				"test/promises.TestFiftyClientsAtOnce", "supervisor.FuzzStep",
				"test/promises.TestOrdersAroundAFrozenVolume", "test/promises.TestEveryRouteAnswersOnAFrozenVolume",
				"internal/gateways/orders.TestDiskAndGatewayAgreeWhateverHappens", "internal/control.TestEveryRouteAnswersWithinItsLimitOnAVolumeThatHangs",
			},
			attempted: "{concurrent commands} commands of 50 clients; {orders in a freeze} orders in {freezes} freezes of the volume: disk and " +
				"gateway agreed within {worst agreement}; {frozen answers} answers of the API meanwhile, at most {worst answer} late",
		},
		{
			number: 7, text: "Only root and the agent's user change anything, and only root ends the container. hinit answers every client, and PID 1 " +
				"limits what it takes.",
			tests: []string{
				"test/promises.TestHostileClients", "test/promises.TestTheAgentsClientsDoNotKeepRootOut", "test/promises.TestOneWhoWaitsOrHasNoSignalsLeftIsAnswered",
				"test/promises.TestNamesOfTheAgentForgeNothing", "internal/control.TestWhoMayDoWhat", "internal/control.TestTheAgentMayNotEndTheContainerOfRoot",
			},
			attempted: "{hostile clients} clients, at most {worst memory} and {worst files} descriptors; {answers beside those who wait} answers " +
				"beside 128 waiting clients, or without a free signal; {ends refused} refused orders of the agent to end the container",
		},
		{
			number: 8, text: "After a day of events, 200 profiles take as much memory, goroutines and descriptors as before.",
			tests:     []string{"test/promises.TestADayOfTwoHundredProfiles"},
			attempted: "{events} events: private memory {soak memory}; goroutines {soak goroutines}; descriptors {soak files}",
		},
		{
			number: 9, text: "hinit reports and survives its own faults. `hinit reexec` changes the binary under running services. Neither ends a process, " +
				"loses a line or forgets a deadline. A second fault within a minute stops the container in order.",
			tests: []string{
				"test/promises.TestTermAroundAReexec", "test/promises.TestTermAroundAReexecOnABusyMachine", "test/promises.TestPID1SurvivesItsOwnExecUnderAForkBomb",
				"test/promises.TestPID1SurvivesItsOwnExecWithoutMemory",
				"test/promises.TestAReexecAsTheAgentsUserSurvivesAForkBomb", "test/promises.TestAReexecResumesWhatItHasStoppedAndNothingElse",
				"test/promises.TestAReexecIntoAProgramThatIsNoHinitIsRefused", "test/promises.TestAReexecThatCouldEndHinitIsRefused", "test/promises.TestAStopThatTheDiskRefusedIsRecordedByTheNextImage",
				"test/promises.TestMemoryIsRecordedAfterAReExecution", "logrotate.TestWhatWaitsForADiskIsHandedOver", "supervisor.FuzzHandover", "supervisor.FuzzUndo",
				"supervisor.TestEveryFieldIsHandedOver", "test/script.TestPID1", "test/script.TestSubreaper",
			},
			attempted: "6 programs one after another under 200 services that write 400,000 lines; {terms} TERMs around a change of the program, " +
				"{terms in the gap} of them while none listens; half of these gaps were shorter than {most deaf}; {re-executions under a bomb} " +
				"re-executions and {panics under a bomb} panics under a fork bomb; {re-executions without memory} and {panics without memory} " +
				"without free memory",
		},
		{
			number: 10, text: "2,000 profiles boot, and each costs little more than one of few. No service waits for its slot of s6.",
			tests: []string{
				"test/promises.TestTwoThousandProfiles", "profiles.TestMoreProfilesThanTheLimitAreLeftOutAloud", "test/promises.TestServicesDoNotWaitForTheirSlots",
				"internal/s6/scandir.TestASlotInTheQueueIsThereWhenSomebodyLooks",
			},
			attempted: "{profiles booted} profiles with sleeping shells: each of 500 takes {cost of each of few}; each of 2,000 takes {cost of each " +
				"of many}, and {memory of each} of PID 1's memory; {services without slots} services started within {their start} while the " +
				"disk of their slots did not answer",
		},
		{
			number: 11, text: "However many containers share a volume, no profile runs twice at once. The profiles run while the container with the lock " +
				"runs, whatever is killed or cut off, and whatever the agent writes. A paused container keeps its volume. If a local volume is " +
				"frozen at the boot, only the CMD starts.",
			tests: []string{
				"test/promises.TestContainersOnOneVolumeAtRandom", "test/promises.TestTwoContainersOnOneVolume", "test/promises.TestAPausedContainerKeepsItsVolume",
				"test/promises.TestALeaseIsHandedOver", "test/promises.TestTheAgentCannotKeepAVolumeFromBeingServed", "test/promises.TestOnAServerALostLockEndsTheGateways",
				"test/promises.TestAStandbyRunsItsHooksAfterAReexec", "test/promises.TestAFileSystemThatRefusesLocksDoesNotHoldUpTheBoot", "test/promises.TestOnAVolumeFrozenAtTheBootNothingStartsTwice",
			},
			attempted: "{lease deeds} pauses, kills and restarts of 2, 3 and 10 containers, and {takeovers} takeovers of two",
		},
		{
			number: 12, text: "PID 1 has a constant number of threads and little memory. PID 1 survives every limit of processes or memory, and a volume that " +
				"hangs or is full of names. Root can still give orders.",
			tests: []string{
				"test/promises.TestThreadsOfPID1AreAConstant", "test/promises.TestRootActsAtALimitThatIsReached", "test/promises.TestNoMoreProcesses",
				"test/promises.TestTenThousandEmptyDirectories", "test/promises.TestNoMoreMemory", "test/promises.TestAVolumeFullOfNamesDoesNotKillPID1AtEachBoot",
				"test/promises.TestALimitThatEndsTheGoRuntimeIsNamed", "test/promises.TestAPodWithFewProcessNumbersIsServed",
			},
			attempted: "{calls at the limit} calls at the limit of processes on a hanging volume, with {threads} threads; {orders at the limit} " +
				"orders without a free process number; {memory kills} processes killed for memory; {names on a volume} files with the longest " +
				"names, booted with 64 MB; {empty directories} directories without a profile ({their memory}, and {their time} at rest)",
		},
		{
			number: 13, text: "The agent can't become root, run a program as root, forge a line that root reads, or make root follow a link.",
			tests: []string{
				"test/promises.TestTheAgentDoesNotBecomeRootByAConfigurationThatItSwaps", "test/promises.TestWhatRunsAsRootHasNothingOfTheAgents",
				"test/promises.TestNamesOfTheAgentForgeNothing", "test/promises.TestNoLinkOfTheAgentsIsFollowedForALog",
				"test/promises.TestAnActiveProfileOfAnyKindKeepsNoCommandFromWorking", "internal/fsutil.TestSwapper", "internal/control/show.FuzzNames",
				"test/e2e.TestAConfigurationOnTheVolumeMakesNobodyRoot", "test/e2e.TestRootRunsNothingOfTheAgents",
			},
			attempted: "{config reloads} reloads during {config swaps} exchanges of hinit.yaml; {root's processes} services and hooks of root with " +
				"PATH and HOME on the volume; {hostile names} names with terminal codes; {logs shown} logs shown during {log swaps} exchanges " +
				"for links; {profile commands} commands with an active_profile that is no file",
		},
		{
			number: 14, text: "If the agent registers a service during the boot, the service starts after the boot. hinit removes no file of a living " +
				"gateway.",
			tests:     []string{"test/promises.TestNoSlotOpensBeforeTheBootIsOver", "test/script.TestPID1"},
			attempted: "{slots during a boot} slots that the agent registered and wanted up during a boot hook",
		},
	}
}
