/** Faults that are planted into a copy of the code, one at a time, to test whether the simulator finds them. */

export interface Plant {
  name: string
  /** A seed that finds it, if the first ones do not: `--known` tries it first. */
  seed?: number
  edits: readonly { file: string; find: string; put: string }[]
}

export const PLANTS: readonly Plant[] = [
  {
    name: 'an answer is acknowledged before its commit',
    seed: 5,
    edits: [
      {
        file: 'src/proxy/session/turn/run-turn.ts',
        find: '    await Promise.all([turn.opened, closed]).catch(',
        put: '    void Promise.all([turn.opened, closed]).catch(',
      },
    ],
  },
  {
    name: 'a worker of an older epoch is taken on',
    seed: 12,
    edits: [
      {
        file: 'src/proxy/relay/worker-registry.ts',
        find: 'if (hello.epoch < knownEpoch) {',
        put: 'if (hello.epoch < 0) {',
      },
    ],
  },
  {
    name: 'the index of a turn that could not be put on record is kept',
    seed: 34,
    edits: [
      {
        file: 'src/proxy/session/turn/run-turn.ts',
        find: 'opened.catch(() => allocation.unrecorded())',
        put: 'opened.catch(() => {})',
      },
    ],
  },
  {
    name: 'a sample of an equal request is superseded',
    edits: [
      {
        file: 'src/proxy/session/trajectories/retries.ts',
        find: '  return retryCount > 0 || resumedAt !== undefined\n',
        put: '  return true\n',
      },
      {
        file: 'src/proxy/session/trajectories/retries.ts',
        find: '  if (retryCount > 0) return (turn.answeredCount ?? turn.retryCount) < retryCount\n',
        put: '  if (true) return true\n',
      },
    ],
  },
  {
    name: 'the lease of a call that failed before its first event is not given back',
    seed: 7,
    edits: [
      {
        file: 'src/proxy/engines/dispatch/failover.ts',
        find: '      lease.release()\n',
        put: '      if (begun) lease.release()\n',
      },
    ],
  },
  {
    name: 'a reset leaves the turns on record',
    seed: 25,
    edits: [
      {
        file: 'src/proxy/store/sqlite/sessions.ts',
        find: `      if (dropTree.run(sessionId).changes === 0) return undefined
      reset.run({ sessionId, tree: plantTree(), atMs })`,
        put: `      const tree = reader.tree(sessionId)
      if (tree === undefined) return undefined
      reset.run({ sessionId, tree, atMs })`,
      },
    ],
  },
  {
    name: 'what comes again after a reconnect is delivered twice',
    seed: 16,
    edits: [
      {
        file: 'src/worker/frame-sender.ts',
        find: 'this.#kept.filter((frame) => frame.seq > received).map(',
        put: 'this.#kept.map(',
      },
      {
        file: 'src/proxy/relay/frame-receiver.ts',
        find: "    if (seq <= this.#received) return 'duplicate'\n",
        put: '',
      },
    ],
  },
  {
    name: 'a frame that comes twice is delivered twice',
    seed: 62,
    edits: [
      {
        file: 'src/proxy/relay/frame-receiver.ts',
        find: "    if (seq <= this.#received) return 'duplicate'\n",
        put: '',
      },
    ],
  },
  {
    name: 'a call is handed on after its agent has had a part of the answer',
    seed: 26,
    edits: [
      { file: 'src/proxy/engines/dispatch/failover.ts', find: 'if (begun || verdict', put: 'if (verdict' },
    ],
  },
  {
    name: '/health says ok while nothing can be put on record',
    seed: 26,
    edits: [
      {
        file: 'src/proxy/store/common/thread-store.ts',
        find: "    await this.#call('tryCommit', [])\n",
        put: '',
      },
    ],
  },
  {
    name: 'a call is answered after its session has ended',
    seed: 32,
    edits: [
      {
        file: 'src/proxy/session/state/live-session.ts',
        find: 'return this.#state?.active ?? false',
        put: 'return true',
      },
    ],
  },
  {
    name: 'a completion that several rows share trains in each of them',
    edits: [
      {
        file: 'src/proxy/session/trajectories/assemble-row.ts',
        find: 'trained: trainedBy.get(turn) === plan,',
        put: 'trained: trainedBy.has(turn),',
      },
    ],
  },
  {
    name: 'an answer is tokenized anew for the prompt that goes on from it',
    edits: [
      {
        file: 'src/proxy/session/prompts/prompt-planner.ts',
        find: "if (parent && extended && 'ids' in extended) {",
        put: "if (parent && extended && 'ids' in extended && call.isFork) {",
      },
    ],
  },
  {
    name: 'an engine that tells fewer ids than it counts is believed',
    seed: 25,
    edits: [
      {
        file: 'src/proxy/session/prompts/exactness.ts',
        find: '  if (counted !== undefined && counted !== tokenIds.length) {',
        put: '  if (counted !== undefined && counted < tokenIds.length) {',
      },
    ],
  },
  {
    name: 'an engine that tells fewer ids of the prompt than it counts is believed',
    seed: 20,
    edits: [
      {
        file: 'src/proxy/session/prompts/exactness.ts',
        find: '  if (promptCounted !== undefined && promptCounted !== promptCount) {',
        put: '  if (promptCounted !== undefined && promptCounted < promptCount) {',
      },
    ],
  },
  {
    name: 'the weights of the end of a whole answer are those of its start',
    seed: 66,
    edits: [
      {
        file: 'src/proxy/engines/clients/wire/completion-reader.ts',
        find: 'const weightVersion = first ?? (isComplete ? undefined : this.#weightVersion)',
        put: 'const weightVersion = first ?? this.#weightVersion',
      },
    ],
  },
  {
    name: 'the weights told with a whole answer are those of its start',
    seed: 84,
    edits: [
      {
        file: 'src/proxy/engines/clients/wire/weight-version.ts',
        find: '(isComplete ? undefined : readWeightVersion(holder.weight_version))',
        put: 'readWeightVersion(holder.weight_version)',
      },
    ],
  },
  {
    name: 'the last span of weights is that of the first token',
    seed: 447,
    edits: [
      {
        file: 'src/proxy/engines/clients/wire/weight-version.ts',
        find: 'versionAt(holder.weight_versions, 0)',
        put: 'versionAt(holder.weight_versions, -1)',
      },
    ],
  },
  {
    name: 'the last span of weights is not read',
    seed: 447,
    edits: [
      {
        file: 'src/proxy/engines/clients/wire/completion-reader.ts',
        find: '    this.#weightVersion = lastWeightVersion(choice) ?? this.#weightVersion\n',
        put: '',
      },
    ],
  },
  {
    name: 'the weights at the end of an answer are dropped',
    seed: 36,
    edits: [
      {
        file: 'src/proxy/engines/clients/wire/completion-reader.ts',
        find: '      weightVersion: this.#weightVersion,\n',
        put: '',
      },
    ],
  },
  {
    name: 'an answer that was cut before its finish reason counts as whole',
    seed: 69,
    edits: [
      {
        file: 'src/proxy/engines/clients/wire/completion-reader.ts',
        find: '    if (this.#finishReason === undefined) throw unfinishedResponse(engine)',
        put: "    if (this.#finishReason === undefined) this.#finishReason = 'stop'",
      },
    ],
  },
  {
    name: 'calls that their agent has cut count as those that were sampled',
    seed: 50,
    edits: [
      {
        file: 'src/proxy/session/matching/message-tree.ts',
        find: 'const MAX_TIDIED_AWAY = 1_000\n',
        put: 'const MAX_TIDIED_AWAY = 1_000_000\n',
      },
    ],
  },
  {
    name: 'calls that their agent has tidied are others',
    seed: 4,
    edits: [
      {
        file: 'src/proxy/session/matching/message-tree.ts',
        find: 'const MAX_TIDIED_AWAY = 1_000\n',
        put: 'const MAX_TIDIED_AWAY = -1_000_000\n',
      },
    ],
  },
  {
    name: 'results stand behind calls in the order in which they were sent',
    seed: 32,
    edits: [
      {
        file: 'src/proxy/session/prompts/restore-sampled.ts',
        find: '  if (!isComplete) return\n',
        put: '  return\n',
      },
    ],
  },
]
