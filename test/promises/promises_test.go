package promises_test

// promises is the sheet. A test is named by its directory; a test of the documents looks for it there.
func promises() []promise {
	return []promise{
		{
			number: 1, text: "PID 1 never exits, hangs or spins because of a service, a client, a file or a refusal of the kernel.",
			tests: []string{
				"test/promises.TestTheKernelRefuses", "test/promises.TestAFullDiskAndAReadOnlyOne", "test/promises.TestTermWhileHinitBegins", "test/promises.TestFrozen",
				"test/promises.TestHostileClients", "test/promises.TestChaos", "test/promises.TestChaosInSlots", "test/promises.TestNoSignalKillsPID1",
				"test/promises.TestSignalsThatTheRuntimeLeavesAloneDoNotKillPID1",
				"test/promises.TestASeccompProfileThatForbidsToWait", "test/promises.TestAGatewayThatChangesItsConfigurationDoesNotSpin",
				"supervisor.TestStepsOfTheClockMoveNoDeadline", "internal/control.TestClientsThatMisbehaveAreDropped",
			},
			tried: "{faults} faults, {hostile clients} clients that say nothing or do not read, {bad inputs} bad inputs, {chaos rounds} rounds of chaos with {chaos commands} commands; " +
				"{terms at the beginning} TERMs while it begins; {hostile signals} signals of all kinds sent to PID 1; " +
				"a gateway that changes its configuration and ends with code 78, for ever: {restless starts}",
		},
		{
			number: 2, text: "No zombie is left, however many orphans there are; no process is signalled that is not the service's.",
			tests: []string{"test/promises.TestOrphans", "test/promises.TestNoSignalGoesAstray"},
			tried: "{orphans} orphans; {signals} stops, kills and restarts beside bystanders that count signals, {recycled} with a process number in new hands",
		},
		{
			number: 3, text: "No accepted log line is lost, doubled or torn, but for those that the console leaves out, which are counted and shown.",
			tests: []string{"test/promises.TestTheKernelRefuses", "test/promises.TestAFullDiskAndAReadOnlyOne", "test/promises.TestChaos", "test/promises.TestChaosInSlots", "logrotate.FuzzPump", "logrotate.TestEveryLineIsAccountedFor"},
			tried: "{lines} lines compared, through full disks, faults, rotations and kills",
		},
		{
			number: 4, text: "After SIGKILL of the container at any instant the next boot restores exactly what was last asked for.",
			tests: []string{
				"test/promises.TestCrashAfterEveryStepOfACommand", "test/promises.TestCrashAfterEveryStepOfAProfileCommand", "test/promises.TestCrashAfterEveryStepOfABoot", "test/promises.TestKilledAtAnyInstantAfterTheAnswer",
				"profiles.TestBootPutsBackWhatAGatewayTookBack",
			},
			tried: "{crashes} crash points, which are all; {kills} kills",
		},
		{
			number: 5, text: "Stop ends everything that a service started within its grace + 50 ms, the container within its budget + 50 ms; a stubborn one costs the others nothing.",
			tests: []string{
				"test/promises.TestStopEndsEverything", "test/promises.TestStopEndsAComet", "test/promises.TestStopEndsACometOnABusyMachine",
				"test/promises.TestStopEndsAProcessWhoseFirstThreadHasEnded", "test/promises.TestStopNamesAProcessThatHidesWhoseItIs",
				"test/promises.TestStopEndsASiblingOfTheGateway", "internal/proc.TestACometIsNotGoneUntilItIs",
			},
			tried: "{stops} stops of services that try to get away; half of them within {most stops} beyond the grace, the worst {worst stop}; " +
				"{comets} of a daemon that forks and ends for ever, the worst of those that ran alone {worst comet} beyond the grace; the end of the container {most ends} beyond its budget",
		},
		{
			number: 6, text: "`start`, `stop` and `restart` never say yes when it is not so; however many ask, there is one process of each, and the last intent.",
			tests: []string{
				"test/promises.TestFiftyClientsAtOnce", "supervisor.FuzzStep",
				"test/promises.TestOrdersAroundAFrozenVolume", "test/promises.TestEveryRouteAnswersOnAFrozenVolume",
				"internal/gateways/orders.TestDiskAndGatewayAgreeWhateverHappens", "internal/control.TestEveryRouteAnswersWithinItsLimitOnAVolumeThatHangs",
			},
			tried: "{concurrent commands} commands of 50 clients; {orders in a freeze} orders while the volume was frozen, {freezes} times: disk and gateway agreed " +
				"{worst agreement} after it answered again at the latest; {frozen answers} answers of the API meanwhile, the latest {worst answer} after its time",
		},
		{
			number: 7, text: "Only root and the agent's user change anything, and only root ends the container; everybody is answered, whoever waits; what PID 1 takes is bounded.",
			tests: []string{
				"test/promises.TestHostileClients", "test/promises.TestTheAgentsClientsDoNotKeepRootOut", "test/promises.TestOneWhoWaitsOrHasNoSignalsLeftIsAnswered",
				"test/promises.TestNamesOfTheAgentForgeNothing", "internal/control.TestWhoMayDoWhat", "internal/control.TestTheAgentMayNotEndTheContainerOfRoot",
			},
			tried: "{hostile clients} clients; at the worst {worst memory} and {worst files} descriptors; {answers beside those who wait} answers while 128 clients wait, " +
				"or where no signal can be queued; {ends refused} orders of the agent's to end the container",
		},
		{
			number: 8, text: "200 profiles and a day of events leave memory, goroutines and descriptors as they were.",
			tests: []string{"test/promises.TestADayOfTwoHundredProfiles"},
			tried: "{events} events: private memory {soak memory}; goroutines {soak goroutines}; descriptors {soak files}",
		},
		{
			number: 9, text: "A fault of hinit itself is reported and survived in place; `hinit reexec` changes the binary under running services. " +
				"Neither ends a process, loses a line or forgets a deadline. A second fault within a minute stops the container in order.",
			tests: []string{
				"test/promises.TestTermAroundAReexec", "test/promises.TestTermAroundAReexecOnABusyMachine", "test/promises.TestPID1SurvivesItsOwnExecUnderAForkBomb",
				"test/promises.TestPID1SurvivesItsOwnExecWithoutMemory",
				"test/promises.TestAReexecAsTheAgentsUserSurvivesAForkBomb", "test/promises.TestAReexecResumesWhatItHasStoppedAndNothingElse",
				"test/promises.TestAReexecThatCouldEndHinitIsRefused", "test/promises.TestAStopThatTheDiskRefusedIsRecordedByTheNextImage",
				"test/promises.TestMemoryIsRecordedAfterAReExecution", "logrotate.TestWhatWaitsForADiskIsHandedOver", "supervisor.FuzzHandover", "supervisor.FuzzUndo",
				"supervisor.TestEveryFieldIsHandedOver", "test/script.TestPID1", "test/script.TestSubreaper",
			},
			tried: "Scenarios `reexec`, `reexec-many`, `reexec-s6`, `reexec-terminal`, `panic-loop`, `panic-goroutine`, `panic-s6` and `panic-s6-scanner`, " +
				"in each run of the tests: 6 images one after another under 200 services that write 400,000 lines; " +
				"{terms} TERMs at random instants around a change of the image, {terms in the gap} of them while no part can listen, half of these times, of images that ran alone, shorter than {most deaf}; " +
				"{re-executions under a bomb} re-executions and {panics under a bomb} panics with a fork bomb at 64, 150 and 256 processes; " +
				"{re-executions without memory} and {panics without memory} in memory that is full all the time",
		},
		{
			number: 10, text: "2,000 profiles boot, and each of them costs nearly what it costs where there are few. No service waits for its slot of s6.",
			tests: []string{
				"test/promises.TestTwoThousandProfiles", "profiles.TestMoreProfilesThanTheLimitAreLeftOutAloud", "test/promises.TestServicesDoNotWaitForTheirSlots",
				"internal/s6/scandir.TestASlotInTheQueueIsThereWhenSomebodyLooks",
			},
			tried: "{profiles booted} profiles with shells that sleep: of 500 each takes {cost of each of few}; of 2,000 {cost of each of many}, and {memory of each} of PID 1's memory; " +
				"{services without slots} services of hinit.yaml, which ran after {their start} while the disk of their slots did not answer; the slots took {their slots} then",
		},
		{
			number: 11, text: "However many containers share a volume, no profile runs twice at the same time, and each runs while the container that has the lock runs, " +
				"whatever is killed, restarted or cut off, and whatever the agent writes. A paused container keeps its volume. " +
				"Where a local volume is frozen at the boot, only the CMD starts.",
			tests: []string{
				"test/promises.TestContainersOnOneVolumeAtRandom", "test/promises.TestTwoContainersOnOneVolume", "test/promises.TestAPausedContainerKeepsItsVolume",
				"test/promises.TestALeaseIsHandedOver", "test/promises.TestTheAgentCannotKeepAVolumeFromBeingServed", "test/promises.TestOnAServerALostLockEndsTheGateways",
				"test/promises.TestAStandbyRunsItsHooksAfterAReexec", "test/promises.TestOnAVolumeFrozenAtTheBootNothingStartsTwice",
			},
			tried: "{lease deeds} pauses, kills and restarts of 2, 3 and 10 containers, and {takeovers} takeovers of two",
		},
		{
			number: 12, text: "PID 1's threads are a constant and its memory is small. Neither a limit of processes or of memory that is reached, nor a volume that hangs or is full of " +
				"names ends it, and root can act all the same.",
			tests: []string{
				"test/promises.TestThreadsOfPID1AreAConstant", "test/promises.TestRootActsAtALimitThatIsReached", "test/promises.TestNoMoreProcesses",
				"test/promises.TestTenThousandEmptyDirectories", "test/promises.TestNoMoreMemory", "test/promises.TestAVolumeFullOfNamesDoesNotKillPID1AtEachBoot",
			},
			tried: "{calls at the limit} calls at the limit of processes, on a volume that hangs again and again, with {threads} threads from first to last; " +
				"{orders at the limit} orders where there is no process left; {memory kills} processes taken for want of memory; " +
				"{names on a volume} files with the longest names on a volume, booted with 64 MB; {empty directories} directories without a profile below profiles/ " +
				"(they take {their memory}, and {their time} when nothing happens)",
		},
		{
			number: 13, text: "Nothing that the agent writes, names or links makes it root, runs as root, forges a line of what root reads, or is followed by root.",
			tests: []string{
				"test/promises.TestTheAgentDoesNotBecomeRootByAConfigurationThatItSwaps", "test/promises.TestWhatRunsAsRootHasNothingOfTheAgents",
				"test/promises.TestNamesOfTheAgentForgeNothing", "test/promises.TestNoLinkOfTheAgentsIsFollowedForALog",
				"test/promises.TestAnActiveProfileOfAnyKindKeepsNoCommandFromWorking", "internal/fsutil.TestSwapper", "internal/control/show.FuzzNames",
				"test/e2e.TestAConfigurationOnTheVolumeMakesNobodyRoot", "test/e2e.TestRootRunsNothingOfTheAgents",
			},
			tried: "{config reloads} reloads while the agent exchanged hinit.yaml {config swaps} times; {root's processes} services and hooks of root's in a container whose PATH and HOME are on the volume; " +
				"{hostile names} names of services with what terminals obey; {logs shown} logs shown while the agent exchanged them for links {log swaps} times; " +
				"{profile commands} commands about profiles with an active_profile that is no file",
		},
		{
			number: 14, text: "What the agent registers while the container boots starts when the boot is over, and no file of a living gateway is removed.",
			tests: []string{"test/promises.TestNoSlotOpensBeforeTheBootIsOver", "test/script.TestPID1"},
			tried: "{slots during a boot} slots that the agent registered and wanted up during a boot hook",
		},
	}
}
