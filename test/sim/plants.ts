/** Faults that are planted into a copy of the code, one at a time, to test whether the simulator finds them. */

export interface Plant {
  name: string
  /** A seed that finds it, if the first ones do not: `--known` tries it first. */
  seed?: number
  edits: readonly { file: string; find: string; put: string }[]
}

export const PLANTS: readonly Plant[] = [
  {
    name: 'a response is acknowledged before its commit',
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
    name: 'a worker of an older epoch is accepted',
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
    name: 'the index of a turn that could not be recorded is kept',
    seed: 34,
    edits: [
      {
        file: 'src/proxy/session/turn/run-turn.ts',
        find: 'opened.catch(() => allocation.freeIndex())',
        put: 'opened.catch(() => {})',
      },
    ],
  },
  {
    name: 'a sample of an equal request is superseded',
    edits: [
      {
        file: 'src/proxy/session/trajectories/retries.ts',
        find: '  return retryCount > 0 || lostMessageId !== undefined || resumedAt !== undefined\n',
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
    name: 'the lease of a request that failed before its first event is not released',
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
    name: 'a reset keeps the recorded turns',
    seed: 25,
    edits: [
      {
        file: 'src/proxy/store/common/session-writer.ts',
        find: `      this.dropTree(row.tree)
      return { ...NO_TURNS, tree: this.createTree(), updated_at_ms: atMs }`,
        put: '      return { ...NO_TURNS, updated_at_ms: atMs }',
      },
    ],
  },
  {
    name: 'a frame that is resent after a reconnect is delivered twice',
    seed: 16,
    edits: [
      {
        file: 'src/worker/resend-buffer.ts',
        find: 'this.#kept.filter((frame) => frame.seq > received).map(',
        put: 'this.#kept.map(',
      },
      {
        file: 'src/proxy/relay/frame-buffer.ts',
        find: "    if (seq <= this.#received) return 'duplicate'\n",
        put: '',
      },
    ],
  },
  {
    name: 'a duplicate frame is delivered twice',
    seed: 62,
    edits: [
      {
        file: 'src/proxy/relay/frame-buffer.ts',
        find: "    if (seq <= this.#received) return 'duplicate'\n",
        put: '',
      },
    ],
  },
  {
    name: 'a request fails over after its agent has received a part of the response',
    seed: 45,
    edits: [
      { file: 'src/proxy/engines/dispatch/failover.ts', find: 'if (begun || verdict', put: 'if (verdict' },
    ],
  },
  {
    name: '/health reports ok while nothing can be recorded',
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
    name: 'a request is served after its session has ended',
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
    name: 'a completion that several rows share is trained in each of them',
    edits: [
      {
        file: 'src/proxy/session/trajectories/assemble-row.ts',
        find: 'trained: trainedBy.get(turn) === plan,',
        put: 'trained: trainedBy.has(turn),',
      },
    ],
  },
  {
    name: 'a completion is tokenized again for the prompt that continues it',
    edits: [
      {
        file: 'src/proxy/session/prompts/prompt-planner.ts',
        find: "if (parent && extended && 'ids' in extended) {",
        put: "if (parent && extended && 'ids' in extended && call.isFork) {",
      },
    ],
  },
  {
    name: 'an engine that reports fewer ids than it counts is believed',
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
    name: 'an engine that reports fewer prompt ids than it counts is believed',
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
    name: 'the end weights of a complete response are those of its start',
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
    name: 'the weights that a complete response reports are those of its start',
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
        find: 'findVersionAt(holder.weight_versions, 0)',
        put: 'findVersionAt(holder.weight_versions, -1)',
      },
    ],
  },
  {
    name: 'the last span of weights is not read',
    seed: 447,
    edits: [
      {
        file: 'src/proxy/engines/clients/wire/completion-reader.ts',
        find: '    this.#weightVersion = findLastWeightVersion(choice) ?? this.#weightVersion\n',
        put: '',
      },
    ],
  },
  {
    name: 'the end weights of a response are dropped',
    seed: 66,
    edits: [
      {
        file: 'src/proxy/engines/clients/wire/completion-reader.ts',
        find: '      weightVersion: this.#weightVersion,\n',
        put: '',
      },
    ],
  },
  {
    name: 'a response that was cut before its finish reason counts as complete',
    seed: 69,
    edits: [
      {
        file: 'src/proxy/engines/clients/wire/completion-reader.ts',
        find: '    if (this.#finishReason === undefined) throw createUnfinishedResponseError(engine)',
        put: "    if (this.#finishReason === undefined) this.#finishReason = 'stop'",
      },
    ],
  },
  {
    name: 'tool calls that their agent has cut count as those that were sampled',
    seed: 50,
    edits: [
      {
        file: 'src/proxy/session/matching/message-tree.ts',
        find: 'const MAX_MISSING_LETTERS = 1_000\n',
        put: 'const MAX_MISSING_LETTERS = 1_000_000\n',
      },
    ],
  },
  {
    name: 'tool calls that their agent has tidied count as others',
    seed: 9,
    edits: [
      {
        file: 'src/proxy/session/matching/message-tree.ts',
        find: 'const MAX_MISSING_LETTERS = 1_000\n',
        put: 'const MAX_MISSING_LETTERS = -1_000_000\n',
      },
    ],
  },
  {
    name: 'results follow tool calls in the order in which they were sent',
    seed: 35,
    edits: [
      {
        file: 'src/proxy/session/prompts/restore-sampled.ts',
        find: '  if (!isComplete) return\n',
        put: '  return\n',
      },
    ],
  },
  {
    name: 'the prompt of a continued response lacks its last token',
    seed: 16,
    edits: [
      {
        file: 'src/proxy/session/prompts/token-prompts.ts',
        find: 'new PromptIds(Int32Array.from(sampled), prompt.ids, prompt.ids.length)',
        put: 'new PromptIds(Int32Array.from(sampled.slice(0, -1)), prompt.ids, prompt.ids.length)',
      },
    ],
  },
  {
    name: 'the parts of a continued response have the weights of the first one',
    seed: 63,
    edits: [
      {
        file: 'src/proxy/session/turn/response-continuation.ts',
        find: '      weight_version: (start && this.#version) ?? null,',
        put: '      weight_version: this.#ended[0]?.weight_version ?? (start && this.#version) ?? null,',
      },
    ],
  },
]
