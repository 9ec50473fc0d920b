import type { GenerationEvent, GenerationStream } from '../../../protocol/canonical/events.ts'

interface StartedAnswer extends AsyncDisposable {
  next(): Promise<IteratorResult<readonly GenerationEvent[]>>
}

/** Asks for the answer's first batch at once, so that the engine works while its caller does something else. */
export function startOf(answer: GenerationStream): StartedAnswer {
  const events = answer[Symbol.asyncIterator]()
  let first: ReturnType<typeof events.next> | undefined = events.next()
  first.catch(() => {})
  return {
    next() {
      const next = first ?? events.next()
      first = undefined
      return next
    },
    async [Symbol.asyncDispose]() {
      await events.return?.()
    },
  }
}
