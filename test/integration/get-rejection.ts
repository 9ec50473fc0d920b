/** Returns the error with which a request was rejected. */
export async function getRejection(request: Promise<unknown>): Promise<unknown> {
  return request.then(
    () => new Error('the request was accepted'),
    (error: unknown) => error,
  )
}
