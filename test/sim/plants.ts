/** Faults that are planted into a copy of the code, one at a time, to see whether the simulator finds them. */

export interface Plant {
  name: string
  edits: readonly { file: string; find: string; put: string }[]
}

export const PLANTS: readonly Plant[] = [
  {
    name: 'an answer is acknowledged before its commit',
    edits: [
      {
        file: 'src/proxy/session/turn/run-turn.ts',
        find: '    await Promise.all([turn.opened, closed])\n',
        put: '    Promise.all([turn.opened, closed]).catch(() => {})\n',
      },
    ],
  },
  {
    name: 'a worker of an older epoch is taken on',
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
    edits: [
      {
        file: 'src/proxy/session/turn/run-turn.ts',
        find: 'opened.catch(() => sessionCall.unrecorded())',
        put: 'opened.catch(() => {})',
      },
    ],
  },
  {
    name: 'a sample of an equal request is superseded',
    edits: [
      {
        file: 'src/proxy/session/trajectories/retries.ts',
        find: '  if (!tries.some(({ retryCount }) => retryCount > 0)) return []\n',
        put: '',
      },
      {
        file: 'src/proxy/session/trajectories/retries.ts',
        find: '    if (retry.retryCount === 0) return []\n',
        put: '',
      },
      {
        file: 'src/proxy/session/trajectories/retries.ts',
        find: '(turn.answeredCount ?? turn.retryCount) < retry.retryCount && ',
        put: '',
      },
    ],
  },
  {
    name: 'the lease of a call that failed before its first event is not given back',
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
    edits: [
      {
        file: 'src/proxy/store/sqlite/sessions.ts',
        find: `    if (this.#dropTree.run(sessionId).changes === 0) return undefined
    this.#reset.run({ sessionId, tree: this.#plantTree(), atMs })`,
        put: `    const tree = this.#reader.tree(sessionId)
    if (tree === undefined) return undefined
    this.#reset.run({ sessionId, tree, atMs })`,
      },
    ],
  },
  {
    name: 'what comes again after a reconnect is delivered twice',
    edits: [
      {
        file: 'src/worker/outgoing-call.ts',
        find: 'this.#kept.filter((frame) => frame.seq > received).map(',
        put: 'this.#kept.map(',
      },
      {
        file: 'src/proxy/relay/incoming-call.ts',
        find: "    if (seq <= this.#received) return 'duplicate'\n",
        put: '',
      },
    ],
  },
  {
    name: 'a frame that comes twice is delivered twice',
    edits: [
      {
        file: 'src/proxy/relay/incoming-call.ts',
        find: "    if (seq <= this.#received) return 'duplicate'\n",
        put: '',
      },
    ],
  },
  {
    name: 'a call is handed on after its agent has had a part of the answer',
    edits: [
      { file: 'src/proxy/engines/dispatch/failover.ts', find: 'if (begun || verdict', put: 'if (verdict' },
    ],
  },
  {
    name: '/health says ok while nothing can be put on record',
    edits: [
      {
        file: 'src/proxy/store/sqlite/sqlite-turn-store.ts',
        find: "    await this.#call('tryCommit', [])\n",
        put: '',
      },
    ],
  },
  {
    name: 'a call is answered after its session has ended',
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
        file: 'src/proxy/session/trajectories/trajectories.ts',
        find: 'options, trainedBy.get(turn) === plan)',
        put: 'options, trainedBy.has(turn))',
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
]
