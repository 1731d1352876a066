"""The program that runs tests inside a grading sandbox, under the trusted interpreter."""
