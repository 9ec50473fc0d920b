/** Loads the data of views: when a view opens and on changes, until it closes. */
import { useEffect, useState } from 'preact/hooks'
import { isUnreachable, reconnections } from './api.ts'

/** The state of a value that is loaded. */
export interface LoadState<T> {
  value: T | undefined
  error: Error | undefined
  loading: boolean
}

/**
 * Loads a value. The previous value is returned until the new one is loaded.
 * @param load runs again when one of `keys` changes, and when an unreachable proxy is reachable again
 */
export function useLoad<T>(load: (stop: AbortSignal) => Promise<T>, keys: readonly unknown[]): LoadState<T> {
  const [state, setState] = useState<LoadState<T>>({ value: undefined, error: undefined, loading: true })
  useEffect(() => {
    const controller = new AbortController()
    setState((before) => ({ ...before, loading: true }))
    load(controller.signal).then(
      (value) => {
        if (!controller.signal.aborted) setState({ value, error: undefined, loading: false })
      },
      (error: Error) => {
        if (controller.signal.aborted) return
        setState((before) =>
          isUnreachable.value && before.value !== undefined
            ? { ...before, loading: false }
            : { value: undefined, error, loading: false },
        )
      },
    )
    return () => controller.abort()
  }, [...keys, reconnections.value])
  return state
}

const TICK_MS = 2_000

/**
 * Returns a counter that increments every two seconds, to be used as a key of data that is reloaded at this interval.
 */
export function useTick(): number {
  const [tick, setTick] = useState(0)
  useEffect(() => {
    const timer = setInterval(() => setTick((before) => before + 1), TICK_MS)
    return () => clearInterval(timer)
  }, [])
  return tick
}
