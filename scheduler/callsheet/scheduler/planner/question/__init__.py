"""What a planning round is asked: classes, the ways to start them, what they take, and what each way costs."""
