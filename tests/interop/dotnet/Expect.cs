using System;
using System.Collections;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading.Tasks;
using Azure.Messaging.ServiceBus;

namespace Bendybus.Interop
{
    /// <summary>Something was not as expected.</summary>
    public sealed class ExpectationException : Exception
    {
        public ExpectationException(string message) : base(message)
        {
        }
    }

    /// <summary>What a check expects.</summary>
    public static class Expect
    {
        public static void Equal(object expected, object actual, [CallerLineNumber] int line = 0)
        {
            if (!IsSame(expected, actual))
            {
                throw new ExpectationException($"line {line}: expected {Show(expected)}, got {Show(actual)}");
            }
        }

        public static void True(bool holds, string claim, [CallerLineNumber] int line = 0)
        {
            if (!holds)
            {
                throw new ExpectationException($"line {line}: not so: {claim}");
            }
        }

        /// <summary>The operation fails for this reason.</summary>
        public static async Task<ServiceBusException> Fails(
            ServiceBusFailureReason reason, Func<Task> operation, [CallerLineNumber] int line = 0)
        {
            var problem = await Throws<ServiceBusException>(operation, line);
            Equal(reason, problem.Reason, line);
            return problem;
        }

        /// <summary>The operation throws an exception of this type.</summary>
        public static async Task<T> Throws<T>(Func<Task> operation, [CallerLineNumber] int line = 0) where T : Exception
        {
            try
            {
                await operation();
            }
            catch (T expected)
            {
                return expected;
            }
            catch (Exception other)
            {
                throw new ExpectationException(
                    $"line {line}: expected {typeof(T).Name}, got {other.GetType().Name}: {other.Message}");
            }
            throw new ExpectationException($"line {line}: expected {typeof(T).Name}, and nothing was thrown");
        }

        private static bool IsSame(object expected, object actual)
        {
            if (expected is string || !(expected is IEnumerable items) || !(actual is IEnumerable others))
            {
                return Equals(expected, actual);
            }
            var left = items.Cast<object>().ToList();
            var right = others.Cast<object>().ToList();
            return left.Count == right.Count && left.Zip(right, IsSame).All(same => same);
        }

        private static string Show(object value)
        {
            switch (value)
            {
                case null:
                    return "null";
                case string text:
                    return $"\"{text}\"";
                case IEnumerable items:
                    return $"[{string.Join(", ", items.Cast<object>().Select(Show))}]";
                default:
                    return $"{value} ({value.GetType().Name})";
            }
        }
    }
}
